//! Tests of the connection.
