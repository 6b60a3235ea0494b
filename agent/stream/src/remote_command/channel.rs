//! The streams of a session, by what they carry.

/// The header that says what a SPDY stream carries, as [`Headers::get`](crate::spdy::Headers::get) takes it.
pub(super) const STREAM_TYPE: &str = "streamtype";

/// What a stream of SPDY or a channel of WebSocket messages carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Channel {
    /// The input of the command, from the client.
    Stdin,
    /// Its output.
    Stdout,
    /// Its other output. None with a terminal.
    Stderr,
    /// How it ended.
    Error,
    /// Sizes of the client's terminal.
    Resize,
}

impl Channel {
    /// All channels, by number.
    pub const ALL: [Channel; 5] =
        [Channel::Stdin, Channel::Stdout, Channel::Stderr, Channel::Error, Channel::Resize];

    /// The number of the channel in WebSocket messages.
    pub fn number(self) -> u8 {
        match self {
            Channel::Stdin => 0,
            Channel::Stdout => 1,
            Channel::Stderr => 2,
            Channel::Error => 3,
            Channel::Resize => 4,
        }
    }

    /// The channel with a number.
    pub fn of_number(number: u8) -> Option<Channel> {
        Channel::ALL.into_iter().find(|channel| channel.number() == number)
    }

    /// What the header `streamType` of a SPDY stream says.
    pub fn stream_type(self) -> &'static str {
        match self {
            Channel::Stdin => "stdin",
            Channel::Stdout => "stdout",
            Channel::Stderr => "stderr",
            Channel::Error => "error",
            Channel::Resize => "resize",
        }
    }

    /// The channel whose header that is.
    pub fn of_stream_type(stream_type: &str) -> Option<Channel> {
        Channel::ALL.into_iter().find(|channel| channel.stream_type() == stream_type)
    }

    /// Whether the client sends on it.
    pub fn is_input(self) -> bool {
        match self {
            Channel::Stdin | Channel::Resize => true,
            Channel::Stdout | Channel::Stderr | Channel::Error => false,
        }
    }
}
