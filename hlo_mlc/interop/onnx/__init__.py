"""ONNX models as functions of JAX: graphs and what they call, by ONNX's specification."""
