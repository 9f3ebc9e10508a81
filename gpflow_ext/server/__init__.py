"""A bounded HTTP server of one exported model, in the REST dialect of TensorFlow Serving.

It imports TensorFlow, Starlette, uvicorn and the folder ``persistence/verify`` alone, so that both folders
serve on a machine without GPflow: ``scripts/serve.py`` does.
"""
