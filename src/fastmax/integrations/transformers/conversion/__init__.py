"""Turning a pretrained softmax model into a Fastmax model: `convert`, its stages and its report."""
