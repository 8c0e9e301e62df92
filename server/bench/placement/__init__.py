"""`pocketfed bench placement`: is the layout that is chosen the best one there is?"""
