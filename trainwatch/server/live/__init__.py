"""What browsers are told, and what they are answered then: each thing made once for all who follow a run."""
