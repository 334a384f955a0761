//! torch.optim's optimizers, step for step as Python runs them.
