"""The main job, shown: a year of flights goes through the broker in batches and comes out of Spark as a checked table."""
