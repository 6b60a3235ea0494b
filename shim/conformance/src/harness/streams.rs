//! Where streams of processes lead.

use std::path::Path;

/// What becomes of a process's streams.
#[derive(Debug, Clone, Default)]
pub struct Streams {
    /// Where standard input comes from.
    pub stdin: String,
    /// Where standard output goes.
    pub stdout: String,
    /// Where standard error goes; nowhere with a terminal.
    pub stderr: String,
}

impl Streams {
    /// Both outputs to one file, as `ctr run --log-uri` has it.
    pub fn file(path: &Path) -> Streams {
        let uri = format!("file://{}", path.display());
        Streams { stdin: String::new(), stdout: uri.clone(), stderr: uri }
    }

    /// The same for a process with a terminal, which has one output.
    pub fn of_terminal(self) -> Streams {
        Streams { stderr: String::new(), ..self }
    }
}
