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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let of = |query: &[(&'static str, &'static str)]| Options::of_query(query.iter().copied());
        let options = |stdin, stdout, stderr, tty| Ok(Options { stdin, stdout, stderr, tty });
        assert_eq!(of(&[("input", "1"), ("output", "1"), ("error", "1")]), options(true, true, true, false));
        assert_eq!(
            of(&[("tty", "1"), ("input", "1"), ("output", "1"), ("error", "1")]),
            options(true, true, false, true),
            "a terminal has no stderr"
        );
        assert_eq!(
            of(&[("command", "1"), ("output", "1"), ("input", "true")]),
            options(false, true, false, false)
        );
        assert_eq!(
            of(&[("output", "1"), ("input", "0"), ("input", "1")]),
            options(false, true, false, false)
        );
        for nothing in [&[][..], &[("tty", "1")], &[("tty", "1"), ("error", "1")], &[("stdin", "1")]] {
            assert_eq!(of(nothing), Err(NothingAsked), "{nothing:?}");
        }
    }

    #[test]
    fn the_lowest_channel_to_the_client_is_greeted() {
        let table = [("output", Channel::Stdout), ("error", Channel::Stderr), ("input", Channel::Error)];
        for (at, (_, channel)) in table.iter().enumerate() {
            let options = Options::of_query(table[at..].iter().map(|(name, _)| (*name, "1"))).unwrap();
            assert_eq!(options.greeted(), *channel);
        }
    }

    #[test]
    fn sizes_come_with_a_terminal_since_version_3() {
        let terminal = Options { stdin: false, stdout: true, stderr: false, tty: true };
        let uses = |options: Options, version| {
            Channel::ALL.into_iter().filter(|channel| options.uses(*channel, version)).collect::<Vec<_>>()
        };
        assert_eq!(uses(terminal, Version::V2), [Channel::Stdout, Channel::Error]);
        assert_eq!(uses(terminal, Version::V3), [Channel::Stdout, Channel::Error, Channel::Resize]);
        assert_eq!(uses(Options { tty: false, ..terminal }, Version::V5), [Channel::Stdout, Channel::Error]);
    }
}
