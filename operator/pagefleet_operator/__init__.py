"""The program in the cluster: reconciles InferenceService resources. Its first module comes with the issue Operate."""
