"""People who use real sandboxes for as long as one likes, while everything is killed around them."""
