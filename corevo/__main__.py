from corevo.cli import main

main()
