//! A blocking ttrpc connection.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use berth_proto::ttrpc::{Client, Reply, Request, Status};
use prost::Message;

use super::wait::WITHIN;

pub(crate) struct Conn {
    socket: UnixStream,
    client: Client,
    replies: VecDeque<Reply>,
}

impl Conn {
    pub(crate) fn open(path: &Path) -> Conn {
        Conn::try_open(path).unwrap_or_else(|error| panic!("connect to {}: {error}", path.display()))
    }

    pub(crate) fn try_open(path: &Path) -> std::io::Result<Conn> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(WITHIN)).unwrap();
        socket.set_write_timeout(Some(WITHIN)).unwrap();
        Ok(Conn { socket, client: Client::default(), replies: VecDeque::new() })
    }

    pub(crate) fn call<Req: Message, Resp: Message + Default>(
        &mut self,
        service: &str,
        method: &str,
        request: &Req,
    ) -> Result<Resp, Status> {
        let stream = self.begin(service, method, request);
        self.end(stream)
    }

    /// Sends a call without waiting for its answer.
    pub(crate) fn begin<Req: Message>(&mut self, service: &str, method: &str, request: &Req) -> u32 {
        let stream = self.client.call(&Request::of(service, method, request, Duration::ZERO)).unwrap();
        self.flush();
        stream
    }

    /// Waits for a call's answer.
    pub(crate) fn end<Resp: Message + Default>(&mut self, stream: u32) -> Result<Resp, Status> {
        match self.next(stream) {
            Reply::End { result, .. } => result.map(|payload| Resp::decode(payload.as_slice()).unwrap()),
            Reply::Data { .. } => panic!("data on a unary call"),
        }
    }

    /// Opens a stream.
    pub(crate) fn stream(&mut self, service: &str, method: &str) -> u32 {
        let stream = self.client.call_streaming(&Request::of(service, method, &(), Duration::ZERO)).unwrap();
        self.flush();
        stream
    }

    pub(crate) fn send<Req: Message>(&mut self, stream: u32, message: &Req) {
        self.client.send(stream, &message.encode_to_vec()).unwrap();
        self.flush();
    }

    /// The next message of a stream; `None` at its end.
    pub(crate) fn receive<Resp: Message + Default>(&mut self, stream: u32) -> Result<Option<Resp>, Status> {
        match self.next(stream) {
            Reply::Data { payload, .. } => Ok(Some(Resp::decode(payload.as_slice()).unwrap())),
            Reply::End { result, .. } => {
                let last = result?;
                Ok((!last.is_empty()).then(|| Resp::decode(last.as_slice()).unwrap()))
            }
        }
    }

    /// Writes bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    fn flush(&mut self) {
        let bytes = self.client.output().take();
        self.socket.write_all(&bytes).unwrap();
    }

    fn next(&mut self, wanted: u32) -> Reply {
        let of = |reply: &Reply| match reply {
            Reply::Data { stream, .. } | Reply::End { stream, .. } => *stream,
        };
        loop {
            if let Some(at) = self.replies.iter().position(|reply| of(reply) == wanted) {
                return self.replies.remove(at).unwrap();
            }
            let mut buffer = [0; 16 << 10];
            let len = match self.socket.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.unwrap_or_else(|error| panic!("no answer within {WITHIN:?}: {error}")),
            };
            assert!(len > 0, "the shim closed the connection");
            self.client.feed(&buffer[..len]);
            while let Some(reply) = self.client.poll() {
                self.replies.push_back(reply);
            }
        }
    }
}
