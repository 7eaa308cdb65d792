"""The papers' claims trained again: what is compared is in plan.yaml, what came out in docs/experiments/starts."""
