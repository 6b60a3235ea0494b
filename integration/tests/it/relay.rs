//! A relay between containerd and a registry, which passes so many bytes of answers and holds the rest until it is opened.

use std::collections::BTreeSet;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::Result;

use crate::kit::eventually;

/// Bytes of an answer that are passed at once.
const PIECE: usize = 4096;

/// A relay. Its threads end with the lab.
pub(crate) struct Relay {
    at: SocketAddr,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many bytes are still passed; all of them when it is open.
    left: usize,
    is_open: bool,
    /// Connections whose answers are held, by number.
    held: BTreeSet<usize>,
    /// Connections that their clients have closed.
    closed: BTreeSet<usize>,
}

impl Relay {
    /// Listens for clients of `to`, to whom `passes` bytes of all answers are passed.
    pub(crate) fn start(to: SocketAddr, passes: usize) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let at = listener.local_addr()?;
        let gate = Arc::new(Gate::default());
        gate.lock().left = passes;
        let shared = Arc::clone(&gate);
        thread::spawn(move || {
            for (number, client) in listener.incoming().flatten().enumerate() {
                // Where nobody listens, the client sees its connection closed.
                drop(join(number, client, to, &shared));
            }
        });
        Ok(Self { at, gate })
    }

    /// Where it listens, as `hosts.toml` names it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.at)
    }

    /// Waits until it holds an answer.
    pub(crate) fn holds(&self) -> Result<()> {
        eventually("an answer to be held", &false, || Ok(self.gate.lock().held.is_empty()))
    }

    /// How many clients have hung up while their answer was held.
    pub(crate) fn given_up(&self) -> usize {
        let state = self.gate.lock();
        state.held.intersection(&state.closed).count()
    }

    /// Passes so many bytes more.
    pub(crate) fn pass(&self, bytes: usize) {
        self.gate.lock().left += bytes;
        self.gate.changed.notify_all();
    }

    /// Passes everything from now on.
    pub(crate) fn open(&self) {
        self.gate.lock().is_open = true;
        self.gate.changed.notify_all();
    }
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until some of the bytes of an answer may pass, and tells how many.
    fn pass(&self, number: usize, bytes: usize) -> usize {
        let mut state = self.lock();
        while state.left == 0 && !state.is_open {
            state.held.insert(number);
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let passed = if state.is_open { bytes } else { bytes.min(state.left) };
        state.left = state.left.saturating_sub(passed);
        passed
    }
}

/// Joins a client to the registry, a thread for each direction.
fn join(number: usize, mut client: TcpStream, to: SocketAddr, gate: &Arc<Gate>) -> io::Result<()> {
    let mut registry = TcpStream::connect(to)?;
    let (mut asks, mut answers) = (client.try_clone()?, registry.try_clone()?);
    let (ours, theirs) = (Arc::clone(gate), Arc::clone(gate));
    thread::spawn(move || {
        drop(io::copy(&mut asks, &mut registry));
        ours.lock().closed.insert(number);
        drop(registry.shutdown(Shutdown::Write));
    });
    thread::spawn(move || {
        // Either side may hang up at any moment.
        drop(pass_on(number, &mut answers, &mut client, &theirs));
        drop(client.shutdown(Shutdown::Both));
    });
    Ok(())
}

fn pass_on(number: usize, from: &mut TcpStream, to: &mut TcpStream, gate: &Gate) -> io::Result<()> {
    let mut piece = [0; PIECE];
    loop {
        let mut rest = match from.read(&mut piece)? {
            0 => return Ok(()),
            bytes => &piece[..bytes],
        };
        while !rest.is_empty() {
            let (now, later) = rest.split_at(gate.pass(number, rest.len()));
            to.write_all(now)?;
            rest = later;
        }
    }
}
