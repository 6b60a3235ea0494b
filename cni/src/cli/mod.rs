//! The command line: what is asked, how it is done, how it is shown.

pub(crate) mod options;
pub(crate) mod print;
pub(crate) mod run;
