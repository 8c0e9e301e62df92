"""`pocketfed bench`: how fast this machine trains, beside a peer under the same conditions."""
