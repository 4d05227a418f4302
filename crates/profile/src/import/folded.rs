//! Folded stacks: one line `frame;frame;… weight` for each distinct stack, the root first.
