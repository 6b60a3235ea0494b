//! A containerd for tests of answers in several messages: it speaks HTTP/2 as the real one does, and stops where it is told to.

use std::{io::Cursor, path::PathBuf, time::Duration};

use futures::future::poll_immediate;
use h2::{Reason, SendStream, server};
use prost::Message;
use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};
use tonic::metadata::MetadataMap;

use super::{Containerd, containerd::channel};

/// How long an answer is waited for that does not come to its end.
const PATIENCE: Duration = Duration::from_secs(2);

/// Far longer than that, and than any answer takes: a test that is still waiting then has no bound.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Letters of the long word.
pub(crate) const LENGTH: usize = 64 << 10;

/// What comes after the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The end, as gRPC has it.
    Whole,
    /// Containerd's word that it cannot go on.
    Refused,
    /// The same in very many words.
    RefusedAtLength,
    /// Its word that there is no such thing.
    NotFound,
    /// The end of the stream, without a word.
    Unsaid,
    /// A part of another message, then the end of the stream.
    Torn,
    /// The stream is taken back.
    Reset,
    /// The connection is lost.
    HangsUp,
    /// Nothing.
    Stalls,
}

impl Ending {
    /// Every one that is not the end of an answer.
    pub(crate) const MIDWAY: [Self; 6] =
        [Self::Refused, Self::Unsaid, Self::Torn, Self::Reset, Self::HangsUp, Self::Stalls];
}

/// One that answers each call with the same.
pub(crate) struct Fake {
    pub(crate) containerd: Containerd,
    _dir: TempDir,
}

impl Fake {
    pub(crate) async fn answering(messages: &[impl Message], ending: Ending) -> Self {
        let dir = TempDir::new().unwrap();
        let socket: PathBuf = dir.path().join("containerd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let messages: Vec<Vec<u8>> = messages.iter().map(framed).collect();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(serve(connection, messages.clone(), ending));
            }
        });
        let channel = channel(&socket).await.unwrap();
        // What is told of an answer that comes must not turn on how busy the machine is.
        let patience = if ending == Ending::Stalls { PATIENCE } else { LONG };
        Self { containerd: Containerd::unasked(channel, patience), _dir: dir }
    }
}

/// A message with the head that gRPC gives it: not compressed, so long.
fn framed(message: &impl Message) -> Vec<u8> {
    let body = message.encode_to_vec();
    let mut framed = vec![0];
    framed.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
    framed.extend(body);
    framed
}

async fn serve(connection: UnixStream, messages: Vec<Vec<u8>>, ending: Ending) {
    let mut connection = server::Builder::new().handshake::<_, Cursor<Vec<u8>>>(connection).await.unwrap();
    let mut stalled = Vec::new();
    while let Some(Ok((_request, mut respond))) = connection.accept().await {
        let mut stream = respond.send_response(Default::default(), false).unwrap();
        for message in &messages {
            stream.send_data(Cursor::new(message.clone()), false).unwrap();
        }
        // What is to be sent goes with a look at the connection, and what ends the stream would overtake it.
        drop(poll_immediate(connection.accept()).await);
        match ending {
            Ending::Whole => end(&mut stream, "0"),
            Ending::Refused => end(&mut stream, "14"),
            Ending::RefusedAtLength => end_with(&mut stream, "14", &"x".repeat(LENGTH)),
            Ending::NotFound => end(&mut stream, "5"),
            Ending::Unsaid => stream.send_data(Cursor::default(), true).unwrap(),
            Ending::Torn => stream.send_data(Cursor::new(vec![0, 0, 0]), true).unwrap(),
            Ending::Reset => stream.send_reset(Reason::INTERNAL_ERROR),
            Ending::HangsUp => return,
            Ending::Stalls => stalled.push(stream),
        }
    }
}

fn end(stream: &mut SendStream<Cursor<Vec<u8>>>, status: &str) {
    end_with(stream, status, "");
}

fn end_with(stream: &mut SendStream<Cursor<Vec<u8>>>, status: &str, message: &str) {
    let mut trailers = MetadataMap::new();
    trailers.insert("grpc-status", status.parse().unwrap());
    trailers.insert("grpc-message", message.parse().unwrap());
    stream.send_trailers(trailers.into_headers()).unwrap();
}
