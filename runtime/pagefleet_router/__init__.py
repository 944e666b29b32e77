"""The front door of a fleet: passes OpenAI requests on to the replicas of one InferenceService."""
