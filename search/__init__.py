"""The search: controller, samplers, stopping policies and the analysis of trials."""
