//! D-Bus with a peer that is no bus: one connection, calls one after another, and the signals in between.
//!
//! Values are marshalled by zvariant. Messages are framed here: systemd names itself as the sender of what it sends on
//! its own socket, with a name that only a bus may own; zbus panics over that.
//!
//! Source: D-Bus specification, "Message Format", "Authentication Protocol".

use std::{io, path::Path};

use nix::unistd::geteuid;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};
use zvariant::{
    DynamicType, Endian, Type, Value,
    serialized::{Context, Data},
};

/// Largest message that is read. What systemd answers to our calls has a few hundred bytes, a signal some thousands.
const MESSAGE_MAX: usize = 1 << 20;

/// Longest line of the authentication (the specification's own bound).
const LINE_MAX: usize = 16 << 10;

/// Length of the header's part that every message has: up to the length of its fields.
const FIXED: usize = 16;
/// Where the length of the fields, which the array of them begins with, is.
const FIELDS_AT: usize = 12;

const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
const SIGNAL: u8 = 4;

const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

/// Why a connection is of no use.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The socket.
    #[error("talk to the socket")]
    Io(#[from] io::Error),
    /// It does not let us in.
    #[error("authenticate: {0:?} was answered")]
    Refused(String),
    /// What came is no message.
    #[error("read a message")]
    Form(#[from] zvariant::Error),
    /// A message that is too long, or of another protocol.
    #[error("read a message: its header is none of D-Bus, or tells more than {MESSAGE_MAX} bytes")]
    Header,
    /// More ends of jobs came than are kept.
    #[error("find the end of a job among more than {0} others")]
    Flood(usize),
    /// The answer to a call is an error.
    #[error("{name}: {message}")]
    Answer {
        /// Its name, for programs.
        name: String,
        /// Its words.
        message: String,
    },
}

/// What is called.
#[derive(Debug, Clone, Copy)]
pub(super) struct Method {
    pub(super) destination: &'static str,
    pub(super) path: &'static str,
    pub(super) interface: &'static str,
    pub(super) member: &'static str,
}

/// A message that came.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: MessageType,
    endian: Endian,
    body: Vec<u8>,
}

/// What it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MessageType {
    /// The answer to a call of ours.
    Return { to: u32 },
    /// The error that a call of ours was answered with.
    Error { to: u32, name: String },
    /// A signal.
    Signal { interface: String, member: String },
    /// What nobody here answers.
    Other,
}

impl Message {
    /// The body as this type.
    pub(super) fn body<T: serde::de::DeserializeOwned + Type>(&self) -> Result<T, WireError> {
        let data = Data::new(&self.body[..], Context::new_dbus(self.endian, 0));
        Ok(data.deserialize()?.0)
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Peer {
    stream: UnixStream,
    serial: u32,
    /// What was read and is not a whole message yet.
    input: Vec<u8>,
}

impl Peer {
    /// Connects as the user that runs this program.
    pub(super) async fn connect(socket: &Path) -> Result<Self, WireError> {
        let stream = UnixStream::connect(socket).await?;
        let mut peer = Self { stream, serial: 0, input: Vec::new() };
        let user: String = geteuid().to_string().bytes().map(|digit| format!("{digit:02x}")).collect();
        peer.stream.write_all(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes()).await?;
        let answer = peer.line().await?;
        if !answer.starts_with("OK ") {
            return Err(WireError::Refused(answer));
        }
        peer.stream.write_all(b"BEGIN\r\n").await?;
        Ok(peer)
    }

    /// Sends a call and returns its serial number.
    pub(super) async fn send<B>(&mut self, method: Method, body: &B) -> Result<u32, WireError>
    where
        B: serde::Serialize + DynamicType,
    {
        self.serial += 1;
        let signature = body.signature().to_string_no_parens();
        let body = zvariant::to_bytes(Context::new_dbus(Endian::Little, 0), body)?;
        self.stream.write_all(&encode(method, self.serial, &signature, &body)?).await?;
        Ok(self.serial)
    }

    /// The next message. Nothing is lost when this is given up.
    pub(super) async fn receive(&mut self) -> Result<Message, WireError> {
        loop {
            if let Some(length) = length(&self.input)?
                && self.input.len() >= length
            {
                let rest = self.input.split_off(length);
                return decode(&std::mem::replace(&mut self.input, rest));
            }
            self.fill().await?;
        }
    }

    async fn line(&mut self) -> Result<String, WireError> {
        loop {
            if let Some(end) = self.input.windows(2).position(|pair| pair == b"\r\n") {
                let rest = self.input.split_off(end + 2);
                let line = std::mem::replace(&mut self.input, rest);
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.input.len() > LINE_MAX {
                return Err(WireError::Header);
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<(), WireError> {
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            _ => Ok(()),
        }
    }
}

fn encode(method: Method, serial: u32, signature: &str, body: &[u8]) -> Result<Vec<u8>, WireError> {
    let size = |length: usize| u32::try_from(length).map_err(|_too_long| WireError::Header);
    let mut message = vec![b'l', METHOD_CALL, 0, 1];
    message.extend(size(body.len())?.to_le_bytes());
    message.extend(serial.to_le_bytes());
    message.extend([0; 4]);
    for (code, kind, value) in [
        (PATH, b'o', method.path),
        (INTERFACE, b's', method.interface),
        (MEMBER, b's', method.member),
        (DESTINATION, b's', method.destination),
        (SIGNATURE, b'g', signature),
    ] {
        message.resize(message.len().next_multiple_of(8), 0);
        message.extend([code, 1, kind, 0]);
        if kind == b'g' {
            message.push(u8::try_from(value.len()).map_err(|_too_long| WireError::Header)?);
        } else {
            message.extend(size(value.len())?.to_le_bytes());
        }
        message.extend(value.bytes());
        message.push(0);
    }
    let fields = size(message.len() - FIXED)?.to_le_bytes();
    message[FIELDS_AT..FIXED].copy_from_slice(&fields);
    message.resize(message.len().next_multiple_of(8), 0);
    message.extend(body);
    Ok(message)
}

/// Length of the message that `input` begins with, once its header is there.
fn length(input: &[u8]) -> Result<Option<usize>, WireError> {
    let Some(fixed) = input.get(..FIXED) else { return Ok(None) };
    let endian = endian(fixed[0])?;
    let length = body_at(fixed, endian).saturating_add(number(fixed, 4, endian));
    if length > MESSAGE_MAX { Err(WireError::Header) } else { Ok(Some(length)) }
}

/// A whole message.
fn decode(message: &[u8]) -> Result<Message, WireError> {
    let endian = endian(message[0])?;
    let body_at = body_at(message, endian);
    let fields = Data::new(&message[FIELDS_AT..body_at], Context::new_dbus(endian, FIELDS_AT));
    let (fields, _): (Vec<(u8, Value<'_>)>, usize) = fields.deserialize()?;
    let find = |code: u8| fields.iter().find(|(it, _)| *it == code).map(|(_, value)| value);
    let text = |code: u8| match find(code) {
        Some(Value::Str(text)) => text.to_string(),
        Some(_) | None => String::new(),
    };
    let to = match find(REPLY_SERIAL) {
        Some(Value::U32(serial)) => *serial,
        Some(_) | None => 0,
    };
    let kind = match message[1] {
        METHOD_RETURN => MessageType::Return { to },
        ERROR => MessageType::Error { to, name: text(ERROR_NAME) },
        SIGNAL => MessageType::Signal { interface: text(INTERFACE), member: text(MEMBER) },
        _ => MessageType::Other,
    };
    Ok(Message { kind, endian, body: message[body_at..].to_vec() })
}

fn endian(mark: u8) -> Result<Endian, WireError> {
    match mark {
        b'l' => Ok(Endian::Little),
        b'B' => Ok(Endian::Big),
        _ => Err(WireError::Header),
    }
}

fn body_at(fixed: &[u8], endian: Endian) -> usize {
    FIXED.saturating_add(number(fixed, FIELDS_AT, endian)).div_ceil(8).saturating_mul(8)
}

fn number(fixed: &[u8], at: usize, endian: Endian) -> usize {
    let bytes = [fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]];
    let number = match endian {
        Endian::Little => u32::from_le_bytes(bytes),
        Endian::Big => u32::from_be_bytes(bytes),
    };
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use zvariant::OwnedObjectPath;

    use super::*;

    /// A signal as systemd sends it on its own socket: with a well-known name as the sender.
    fn signal(sender: &'static str) -> Vec<u8> {
        let call = Method {
            destination: sender,
            path: "/org/freedesktop/systemd1",
            interface: "org.freedesktop.systemd1.Manager",
            member: "JobRemoved",
        };
        let body = (7_u32, zvariant::ObjectPath::try_from("/job/7").unwrap(), "a.slice", "done");
        let bytes = zvariant::to_bytes(Context::new_dbus(Endian::Little, 0), &body).unwrap();
        let mut message = encode(call, 1, "uoss", &bytes).unwrap();
        message[1] = SIGNAL;
        message
    }

    #[test]
    fn a_sender_that_only_a_bus_may_have_is_no_matter() {
        let mut bytes = signal("org.freedesktop.systemd1");
        // The destination becomes the sender.
        let at = bytes.windows(4).position(|part| part == [DESTINATION, 1, b's', 0]).unwrap();
        bytes[at] = 7;
        let message = decode(&bytes).unwrap();
        let interface = "org.freedesktop.systemd1.Manager".to_owned();
        assert_eq!(message.kind, MessageType::Signal { interface, member: "JobRemoved".to_owned() });
        let (id, path, unit, result): (u32, OwnedObjectPath, String, String) = message.body().unwrap();
        assert_eq!((id, path.as_str(), unit.as_str(), result.as_str()), (7, "/job/7", "a.slice", "done"));
    }

    #[test]
    fn a_message_is_whole_or_waited_for() {
        let bytes = signal("x.y");
        assert_eq!(length(&bytes[..FIXED - 1]).unwrap(), None);
        for end in FIXED..=bytes.len() {
            assert_eq!(length(&bytes[..end]).unwrap(), Some(bytes.len()));
        }
    }

    #[test]
    fn bytes_that_are_no_message_are_errors() {
        let good = signal("x.y");
        // Neither what is cut nor what is changed anywhere panics.
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                if let Ok(Some(length)) = length(&bytes)
                    && length <= bytes.len()
                    && let Ok(message) = decode(&bytes[..length])
                {
                    let _body = message.body::<(u32, OwnedObjectPath, String, String)>();
                }
            }
        }
        for (at, value) in [(0, b'x'), (7, 0xff), (15, 0xff)] {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert!(matches!(length(&bytes), Err(WireError::Header)), "{at}");
        }
    }
}
