//! What a request asks for.

use super::channel::Channel;
use super::version::Version;

/// A request for a session without any stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request must ask for stdin, stdout or stderr: set one of input, output and error to 1")]
pub struct NothingAsked;

/// Streams that a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the parameters of the request, which are independent")]
pub struct Options {
    /// The client sends input.
    pub stdin: bool,
    /// It takes output.
    pub stdout: bool,
    /// It takes the other output.
    pub stderr: bool,
    /// The command gets a terminal.
    pub tty: bool,
}

impl Options {
    /// Reads the parameters `input`, `output`, `error` and `tty` of a query, of which `1` means yes. With a terminal
    /// there is no stderr.
    ///
    /// # Errors
    /// When no stream is asked for.
    pub fn of_query<'q>(
        query: impl IntoIterator<Item = (&'q str, &'q str)>,
    ) -> Result<Options, NothingAsked> {
        let mut first: [Option<bool>; 4] = [None; 4];
        for (name, value) in query {
            let at = ["input", "output", "error", "tty"].iter().position(|known| *known == name);
            // Of several values the first one counts.
            if let Some(known) = at.and_then(|at| first.get_mut(at)) {
                known.get_or_insert(value == "1");
            }
        }
        let [stdin, stdout, stderr, tty] = first.map(|value| value == Some(true));
        let options = Options { stdin, stdout, stderr: stderr && !tty, tty };
        if options.stdin || options.stdout || options.stderr { Ok(options) } else { Err(NothingAsked) }
    }

    /// Whether a session with these options uses a channel. Before version 3 no client sends sizes.
    pub fn uses(&self, channel: Channel, version: Version) -> bool {
        match channel {
            Channel::Stdin => self.stdin,
            Channel::Stdout => self.stdout,
            Channel::Stderr => self.stderr,
            Channel::Error => true,
            Channel::Resize => self.tty && version >= Version::V3,
        }
    }

    /// The channel on which a WebSocket session begins with an empty message, so that the client knows that it is
    /// there.
    pub fn greeted(&self) -> Channel {
        match self {
            Options { stdout: true, .. } => Channel::Stdout,
            Options { stderr: true, .. } => Channel::Stderr,
            Options { .. } => Channel::Error,
        }
    }
}
