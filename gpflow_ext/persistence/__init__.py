"""Checkpoints that refuse the wrong model, and SavedModels that TensorFlow alone can serve.

Nothing is imported here: serving or verifying a model needs neither GPflow nor the code that writes one.
"""
