"""A bounded HTTP server of one exported model, in the REST dialect of TensorFlow Serving.

It imports TensorFlow, Starlette, uvicorn, the folder ``persistence/verify`` and the file
``data/reading/marks.py`` alone, so that these serve on a machine without GPflow: ``scripts/serve.py`` does.
"""
