"""Accounts."""

from __future__ import annotations

from corevo.contracts import AccountId
from corevo.store.connections import Connections


async def local_account(db: Connections) -> AccountId:
    """The one account of COREVO_AUTH=off, a real row made on first use."""
    value: AccountId = await db.value("select corevo.local_account()")
    return value
