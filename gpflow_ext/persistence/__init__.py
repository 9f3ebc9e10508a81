"""Checkpoints that refuse the wrong model, and SavedModels that TensorFlow alone can serve.

Nothing is imported here: who serves or verifies a model needs neither GPflow nor what writes one.
"""
