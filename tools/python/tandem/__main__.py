from tandem.front_door import main

main()
