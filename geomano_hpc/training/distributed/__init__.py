"""The ranks of a training: who they are, where they meet, what they tell each other, and their watch."""
