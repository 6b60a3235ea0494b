//! A blocking ttrpc connection.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use berth_proto::ttrpc::{Client, Reply, Request, Status};
use prost::Message;

use super::fault::Fault;
use super::wait::WITHIN;

/// A connection to a shim; what it waits for is bounded.
#[derive(Debug)]
pub struct Conn {
    socket: UnixStream,
    client: Client,
    replies: VecDeque<Reply>,
    fault: Option<Fault>,
    /// Calls that are not answered yet, where it counts which they are.
    calls: BTreeMap<u32, (String, String)>,
}

impl Conn {
    /// Connects to a shim that is there.
    pub fn open(path: &Path) -> Conn {
        Conn::try_open(path).unwrap_or_else(|error| panic!("connect to {}: {error}", path.display()))
    }

    /// Connects to a shim if it is there.
    pub fn try_open(path: &Path) -> std::io::Result<Conn> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(WITHIN)).unwrap();
        socket.set_write_timeout(Some(WITHIN)).unwrap();
        let (replies, calls) = (VecDeque::new(), BTreeMap::new());
        Ok(Conn { socket, client: Client::default(), replies, fault: None, calls })
    }

    /// The same to a shim that is wrong on purpose.
    pub(super) fn with_fault(self, fault: Option<Fault>) -> Conn {
        Conn { fault, ..self }
    }

    /// Makes a call and waits for its answer.
    pub fn call<Req: Message, Resp: Message + Default>(
        &mut self,
        service: &str,
        method: &str,
        request: &Req,
    ) -> Result<Resp, Status> {
        let stream = self.begin(service, method, request);
        self.end(stream)
    }

    /// Makes a call of a shim that may end before it answers.
    pub fn try_call<Req: Message, Resp: Message + Default>(
        &mut self,
        service: &str,
        method: &str,
        request: &Req,
    ) -> Option<Resp> {
        let wanted = self.ask(service, method, request);
        let bytes = self.client.output().take();
        self.socket.write_all(&bytes).ok()?;
        match self.next(wanted)? {
            Reply::End { result, .. } => Resp::decode(result.ok()?.as_slice()).ok(),
            Reply::Data { .. } => None,
        }
    }

    /// Sends a call without waiting for its answer.
    pub fn begin<Req: Message>(&mut self, service: &str, method: &str, request: &Req) -> u32 {
        let stream = self.ask(service, method, request);
        self.flush();
        stream
    }

    fn ask<Req: Message>(&mut self, service: &str, method: &str, request: &Req) -> u32 {
        let request = Request::of(service, method, request, Duration::ZERO);
        let Some(fault) = self.fault else { return self.client.call(&request).unwrap() };
        let request = fault.asked(request);
        let stream = self.client.call(&request).unwrap();
        self.calls.insert(stream, (request.service, request.method));
        stream
    }

    /// Waits for a call's answer.
    pub fn end<Resp: Message + Default>(&mut self, stream: u32) -> Result<Resp, Status> {
        match self.next(stream).expect("the shim keeps the connection") {
            Reply::End { result, .. } => result.map(|payload| Resp::decode(payload.as_slice()).unwrap()),
            Reply::Data { .. } => panic!("data on a unary call"),
        }
    }

    /// Opens a stream.
    pub fn stream(&mut self, service: &str, method: &str) -> u32 {
        let stream = self.client.call_streaming(&Request::of(service, method, &(), Duration::ZERO)).unwrap();
        self.flush();
        stream
    }

    /// Sends a message on a stream.
    pub fn send<Req: Message>(&mut self, stream: u32, message: &Req) {
        self.client.send(stream, &message.encode_to_vec()).unwrap();
        self.flush();
    }

    /// Whether something of a stream was read while other answers were waited for.
    pub fn has_heard(&self, stream: u32) -> bool {
        self.replies.iter().any(|reply| stream_of(reply) == stream)
    }

    /// Whether the end of a call or stream has not been read.
    pub fn is_open(&self, stream: u32) -> bool {
        self.client.open_streams().any(|open| open == stream)
    }

    /// Cancels a call or a stream.
    pub fn cancel(&mut self, stream: u32) {
        self.client.cancel(stream);
        self.flush();
    }

    /// The next message of a stream; `None` at its end.
    pub fn receive<Resp: Message + Default>(&mut self, stream: u32) -> Result<Option<Resp>, Status> {
        match self.next(stream).expect("the shim keeps the connection") {
            Reply::Data { payload, .. } => Ok(Some(Resp::decode(payload.as_slice()).unwrap())),
            Reply::End { result, .. } => {
                let last = result?;
                Ok((!last.is_empty()).then(|| Resp::decode(last.as_slice()).unwrap()))
            }
        }
    }

    /// Writes bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.try_raw(bytes).unwrap();
    }

    /// Writes bytes as they are to a shim that may hang up.
    pub fn try_raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.socket.write_all(bytes)
    }

    fn falsified(&mut self, reply: Reply) -> Reply {
        match (self.fault, reply) {
            (Some(fault), Reply::End { stream, result }) => {
                let (service, method) = self.calls.remove(&stream).unwrap_or_default();
                Reply::End { stream, result: fault.answered(&service, &method, result) }
            }
            (_, reply) => reply,
        }
    }

    fn flush(&mut self) {
        let bytes = self.client.output().take();
        self.socket.write_all(&bytes).unwrap();
    }

    /// The next reply of a call; `None` if the shim has closed the connection.
    fn next(&mut self, wanted: u32) -> Option<Reply> {
        loop {
            if let Some(at) = self.replies.iter().position(|reply| stream_of(reply) == wanted) {
                return self.replies.remove(at);
            }
            let mut buffer = [0; 16 << 10];
            let len = match self.socket.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                read => read.unwrap_or_else(|error| panic!("no answer within {WITHIN:?}: {error}")),
            };
            if len == 0 {
                return None;
            }
            self.client.feed(&buffer[..len]);
            while let Some(reply) = self.client.poll() {
                let reply = self.falsified(reply);
                self.replies.push_back(reply);
            }
        }
    }
}

fn stream_of(reply: &Reply) -> u32 {
    match reply {
        Reply::Data { stream, .. } | Reply::End { stream, .. } => *stream,
    }
}
