//! What frames are made of, in both directions.

/// Bytes of a frame's head.
pub(super) const HEAD_LEN: usize = 8;

/// The version of all control frames.
pub(super) const VERSION: u16 = 3;

/// Set in the first word of a control frame.
pub(super) const CONTROL: u32 = 0x8000_0000;

/// The bits of a stream, of an update of a window, and of a word that is not control.
pub(super) const LOW_31: u32 = 0x7fff_ffff;

/// Most bytes that a frame can announce.
pub(super) const LEN_MAX: usize = 0xff_ffff;

/// Flag of SYN_STREAM, SYN_REPLY, HEADERS and DATA: the sender sends nothing more on the stream.
pub(super) const FIN: u8 = 1;

/// Flag of SYN_STREAM: the receiver sends nothing on the stream.
pub(super) const UNIDIRECTIONAL: u8 = 2;

/// The setting of the window that streams have at first.
pub(super) const INITIAL_WINDOW_SIZE: u32 = 7;

/// A control frame that this end knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    SynStream,
    SynReply,
    RstStream,
    Settings,
    Ping,
    GoAway,
    Headers,
    WindowUpdate,
}

impl Kind {
    /// The kind of a number, if the protocol gives it one. Others are skipped.
    pub(super) fn of(number: u16) -> Option<Kind> {
        Some(match number {
            1 => Kind::SynStream,
            2 => Kind::SynReply,
            3 => Kind::RstStream,
            4 => Kind::Settings,
            6 => Kind::Ping,
            7 => Kind::GoAway,
            8 => Kind::Headers,
            9 => Kind::WindowUpdate,
            _ => return None,
        })
    }

    pub(super) fn number(self) -> u16 {
        match self {
            Kind::SynStream => 1,
            Kind::SynReply => 2,
            Kind::RstStream => 3,
            Kind::Settings => 4,
            Kind::Ping => 6,
            Kind::GoAway => 7,
            Kind::Headers => 8,
            Kind::WindowUpdate => 9,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::SynStream => "SYN_STREAM",
            Kind::SynReply => "SYN_REPLY",
            Kind::RstStream => "RST_STREAM",
            Kind::Settings => "SETTINGS",
            Kind::Ping => "PING",
            Kind::GoAway => "GOAWAY",
            Kind::Headers => "HEADERS",
            Kind::WindowUpdate => "WINDOW_UPDATE",
        }
    }

    /// Whether a frame of this kind may have a body of so many bytes.
    pub(super) fn takes(self, len: usize) -> bool {
        match self {
            Kind::SynStream => len >= 10,
            Kind::SynReply | Kind::Headers | Kind::Settings => len >= 4,
            Kind::RstStream | Kind::GoAway | Kind::WindowUpdate => len == 8,
            Kind::Ping => len == 4,
        }
    }
}

/// Takes the next word of a body, of which [`Kind::takes`] has said that it is there.
pub(super) fn word(body: &mut &[u8]) -> u32 {
    let Some((word, rest)) = body.split_first_chunk::<4>() else { return 0 };
    *body = rest;
    u32::from_be_bytes(*word)
}

/// The second word of a head.
pub(super) fn flags_and_len(flags: u8, len: usize) -> u32 {
    let len = u32::try_from(len.min(LEN_MAX)).unwrap_or_default();
    u32::from(flags) << 24 | len
}
