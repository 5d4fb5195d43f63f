"""Where networks are trained: in this process, in several, or on a Ray cluster."""
