//! Probes against servers that do what a test says.
