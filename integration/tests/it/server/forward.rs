//! `kubectl port-forward`: much in both directions at once, many connections, and ports at which nobody listens.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::copy::{block, blocks, digest};
use super::kubectl::Protocol;
use super::{KUBECTL_LIMIT, Served, read_until, transfer};
use crate::kit::shell;
use crate::suite::same;

/// The pod, which sends back what it is sent.
pub(super) const ECHOES: &str = "echoes";
const PORT: u16 = 7000;
/// Nobody listens there.
const NOBODY: u16 = 7001;
/// Connections through one forwarding at once.
const AT_ONCE: u64 = 8;

pub(super) fn create(served: &Served) -> Result<()> {
    let script = format!("trap 'exit 0' TERM; nc -ll -p {PORT} -e cat & wait");
    let listens = json!({ "tcpSocket": { "port": PORT }, "periodSeconds": 1, "timeoutSeconds": 30 });
    let main = shell("main", &script, json!({ "readinessProbe": listens }));
    // Two connections wait at most for this `nc`. With cookies the kernel takes more, and resets some of them once they send; without, their
    // clients knock again.
    let patient = json!({ "sysctls": [{ "name": "net.ipv4.tcp_syncookies", "value": "0" }] });
    served.create(ECHOES, json!({ "containers": [main], "securityContext": patient }))
}

/// Something that forwards; it ends with its test.
struct Forward {
    kubectl: Child,
    at: SocketAddr,
}

impl Forward {
    fn start(served: &Served, protocol: Protocol, port: u16) -> Result<Self> {
        served.ready(ECHOES)?;
        let mut kubectl = protocol
            .kubectl(served, &["port-forward", "--address=127.0.0.1", ECHOES, &format!(":{port}")])?
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = read_until(kubectl.stdout.as_mut().context("stdout")?, " -> ")?;
        let at = said.split_whitespace().find_map(|word| word.parse().ok());
        let at = at.with_context(|| format!("no address in {said:?}"))?;
        ensure!(SocketAddr::ip(&at) == Ipv4Addr::LOCALHOST, "it listens at {at}");
        Ok(Self { kubectl, at })
    }

    fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.at)?;
        stream.set_read_timeout(Some(KUBECTL_LIMIT))?;
        stream.set_write_timeout(Some(KUBECTL_LIMIT))?;
        Ok(stream)
    }

    fn end(mut self) -> Result<()> {
        self.kubectl.kill()?;
        self.kubectl.wait()?;
        Ok(())
    }
}

pub(super) fn both_ways(served: &Served, protocol: Protocol) -> Result<()> {
    let forward = Forward::start(served, protocol, PORT)?;
    let bytes = transfer()?;
    let mut stream = forward.connect()?;
    let mut to = stream.try_clone()?;
    let sender = thread::spawn(move || blocks(bytes, |block| to.write_all(block)));
    let back = digest(&mut stream, bytes)?;
    let sent = sender.join().ok().context("the sender panicked")??;
    same("digest of what came back", back, sent)?;
    // The end of one direction is told, and comes back as the end of the other.
    stream.shutdown(Shutdown::Write)?;
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest)?;
    same("what is left", rest.len(), 0)?;
    many_at_once(&forward)?;
    forward.end()
}

/// Each of some connections gets its own bytes back.
fn many_at_once(forward: &Forward) -> Result<()> {
    thread::scope(|scope| {
        let one = |number: u64| {
            scope.spawn(move || -> Result<()> {
                let mut stream = forward.connect()?;
                let sent = block(number);
                let mut to = stream.try_clone()?;
                let mut back = vec![0; sent.len()];
                thread::scope(|scope| {
                    scope.spawn(|| to.write_all(&sent));
                    stream.read_exact(&mut back)
                })?;
                ensure!(back == sent, "connection {number} has another's bytes");
                Ok(())
            })
        };
        let all: Vec<_> = (0..AT_ONCE).map(one).collect();
        all.into_iter().try_for_each(|one| one.join().ok().context("a connection panicked")?)
    })
}

/// It connects, and ends without a byte: whoever asked is not kept waiting.
pub(super) fn of_nobody(served: &Served, protocol: Protocol) -> Result<()> {
    let forward = Forward::start(served, protocol, NOBODY)?;
    let mut stream = forward.connect()?;
    let mut said = Vec::new();
    if let Err(error) = stream.read_to_end(&mut said) {
        // A reset is an end too. A time that is over is none.
        ensure!(error.kind() == ErrorKind::ConnectionReset, "a connection to nobody: {error}");
    }
    same("bytes of nobody", said.len(), 0)?;
    forward.end()
}
