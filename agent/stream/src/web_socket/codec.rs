//! Messages and what they say.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The first byte of a message that closes a channel.
const CLOSE: u8 = 255;

/// The number of the first channel with [`Encoding::Base64`], where numbers are digits.
const DIGIT: u8 = b'0';

/// How data is written in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// As it is, in binary messages. The first byte is the number of the channel.
    Binary,
    /// In base64, in text messages. The first byte is the number of the channel as a digit.
    Base64,
}

/// What a client's message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming<'m> {
    /// Data of a channel, or none.
    Data {
        /// The channel.
        channel: u8,
        /// What it carries.
        bytes: Cow<'m, [u8]>,
    },
    /// The client sends nothing more on a channel.
    Closed {
        /// The channel.
        channel: u8,
    },
    /// Nothing: it is empty, of a channel that the session has not, or not base64.
    Nothing,
}

/// A message that ends the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// A message that closes a channel has exactly one byte after the first.
    #[error("read a message that closes a channel: {0} bytes name the channel, must be 1")]
    CloseLength(usize),
    /// There is no such channel.
    #[error("read a message that closes channel {channel}: the session has {channels} channels")]
    CloseChannel {
        /// The channel.
        channel: u8,
        /// Channels of the session.
        channels: u8,
    },
}

/// Reads and writes the messages of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codec {
    encoding: Encoding,
    channels: u8,
    has_close: bool,
}

impl Codec {
    /// The messages of a session with so many channels, in which a client can close one or cannot.
    pub fn new(encoding: Encoding, channels: u8, has_close: bool) -> Codec {
        Codec { encoding, channels, has_close }
    }

    /// Whether messages are text, not binary, as they are sent. Clients may send either.
    pub fn is_text(&self) -> bool {
        self.encoding == Encoding::Base64
    }

    /// Reads a message.
    ///
    /// # Errors
    /// When the message ends the session.
    pub fn decode<'m>(&self, message: &'m [u8]) -> Result<Incoming<'m>, MessageError> {
        let Some((first, rest)) = message.split_first() else { return Ok(Incoming::Nothing) };
        if self.has_close && *first == CLOSE {
            let [channel] = *rest else { return Err(MessageError::CloseLength(rest.len())) };
            if channel >= self.channels {
                return Err(MessageError::CloseChannel { channel, channels: self.channels });
            }
            return Ok(Incoming::Closed { channel });
        }
        let channel = match self.encoding {
            Encoding::Binary => Some(*first),
            Encoding::Base64 => first.checked_sub(DIGIT),
        };
        let Some(channel) = channel.filter(|channel| *channel < self.channels) else {
            return Ok(Incoming::Nothing);
        };
        Ok(match self.encoding {
            Encoding::Binary => Incoming::Data { channel, bytes: Cow::Borrowed(rest) },
            Encoding::Base64 => match STANDARD.decode(rest) {
                Ok(bytes) => Incoming::Data { channel, bytes: Cow::Owned(bytes) },
                Err(_) => Incoming::Nothing,
            },
        })
    }

    /// Writes a message. `bytes` are [`DATA_MAX`](super::DATA_MAX) at most.
    pub fn encode(&self, channel: u8, bytes: &[u8]) -> Vec<u8> {
        match self.encoding {
            Encoding::Binary => [&[channel], bytes].concat(),
            Encoding::Base64 => {
                let mut text = String::from(char::from(DIGIT.wrapping_add(channel)));
                STANDARD.encode_string(bytes, &mut text);
                text.into_bytes()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(channel: u8, bytes: &[u8]) -> Incoming<'_> {
        Incoming::Data { channel, bytes: Cow::Borrowed(bytes) }
    }

    #[test]
    fn messages_are_read() {
        let v5 = Codec::new(Encoding::Binary, 5, true);
        let v4 = Codec::new(Encoding::Binary, 5, false);
        let base64 = Codec::new(Encoding::Base64, 5, false);
        let table: [(&Codec, &[u8], Result<Incoming<'_>, MessageError>); 18] = [
            (&v5, b"", Ok(Incoming::Nothing)),
            (&v5, b"\0", Ok(data(0, b""))),
            (&v5, b"\0hello", Ok(data(0, b"hello"))),
            (&v5, b"\x04{}", Ok(data(4, b"{}"))),
            (&v5, b"\x05x", Ok(Incoming::Nothing)),
            (&v5, b"\xff\0", Ok(Incoming::Closed { channel: 0 })),
            (&v5, b"\xff\x04", Ok(Incoming::Closed { channel: 4 })),
            (&v5, b"\xff\x05", Err(MessageError::CloseChannel { channel: 5, channels: 5 })),
            (&v5, b"\xff", Err(MessageError::CloseLength(0))),
            (&v5, b"\xff\0\0", Err(MessageError::CloseLength(2))),
            (&v4, b"\xff\0", Ok(Incoming::Nothing)),
            (&base64, b"0aGVsbG8=", Ok(data(0, b"hello"))),
            (&base64, b"4", Ok(data(4, b""))),
            (&base64, b"5aGVsbG8=", Ok(Incoming::Nothing)),
            (&base64, b"\0aGVsbG8=", Ok(Incoming::Nothing)),
            (&base64, b"0aGVsbG8", Ok(Incoming::Nothing)),
            (&base64, b"0not base64", Ok(Incoming::Nothing)),
            (&base64, b"\xff\0", Ok(Incoming::Nothing)),
        ];
        for (codec, message, expected) in table {
            assert_eq!(codec.decode(message), expected, "{codec:?} {message:?}");
        }
    }

    #[test]
    fn messages_are_written() {
        let binary = Codec::new(Encoding::Binary, 5, true);
        assert_eq!(binary.encode(1, b"hello"), b"\x01hello");
        assert_eq!(binary.encode(3, b""), b"\x03", "an empty message greets the client");
        let base64 = Codec::new(Encoding::Base64, 5, false);
        assert_eq!(base64.encode(1, b"hello"), b"1aGVsbG8=");
        assert_eq!(base64.encode(2, b""), b"2");
        assert!(base64.is_text() && !binary.is_text());
    }
}
