//! What is to be removed may be gone.

use std::io;

/// An error that may say that a thing is not there.
pub(crate) trait Absence {
    /// Whether it says so.
    fn is_absence(&self) -> bool;
}

impl Absence for io::Error {
    fn is_absence(&self) -> bool {
        self.kind() == io::ErrorKind::NotFound
    }
}

/// An error because a thing is not there is none.
pub(crate) fn absent_is_fine<T, E: Absence>(result: Result<T, E>) -> Result<(), E> {
    match result {
        Err(error) if !error.is_absence() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}
