"""What is done with every model: building it, counting its parameters and operations, taking one of the user's."""
