"""The program in the cluster: reconciles InferenceService resources. Not built yet."""
