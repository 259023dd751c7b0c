"""Object stores through obstore: S3, GCS and Azure behind one class."""
