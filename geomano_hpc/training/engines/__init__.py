"""What turns losses into optimiser steps: DeepSpeed or plain torch, with one kind of state."""
