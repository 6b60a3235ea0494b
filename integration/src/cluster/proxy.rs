//! Somebody between a node and its API server who passes on what is said, without understanding it, or does not: a network that
//! is cut, slow, or silent in one direction.
//!
//! What it does can be changed at any time, and is felt by the connections that there are.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// One direction of a network.
type Direction = fn(&Network) -> Way;

/// Between two looks at who wants to connect.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// What is passed on at once.
const PIECE_BYTES: usize = 16 << 10;
/// Nobody in a test opens so many connections; a further one is closed at once.
const CONNECTIONS_MAX: usize = 512;

/// What happens to what is said in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Way {
    /// It is passed on.
    #[default]
    Open,
    /// Every piece of it is passed on so much later.
    Slow(Duration),
    /// It is kept until this changes; whoever speaks waits for an answer.
    Silent,
}

/// What happens to connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Door {
    /// They are made.
    #[default]
    Open,
    /// Nobody listens: those that there are go on.
    Shut,
    /// Nobody listens, and those that there are have been cut.
    Cut,
}

/// What the network does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Network {
    /// Of connections.
    pub door: Door,
    /// Of what the node says.
    pub requests: Way,
    /// Of what the server says: answers, and events of watches.
    pub answers: Way,
}

impl Network {
    /// Connections stay and nothing arrives, as when a cable is pulled out.
    pub const SILENT: Self = Self { door: Door::Open, requests: Way::Silent, answers: Way::Silent };
    /// Connections are refused and cut, as when a server has ended.
    pub const GONE: Self = Self { door: Door::Cut, requests: Way::Open, answers: Way::Open };
}

/// The one between. Dropping it closes every connection.
#[derive(Debug)]
pub struct Proxy {
    at: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    network: Network,
    ended: bool,
    /// What the listener has done of the last change of the door.
    listens: bool,
    made: u64,
    /// When the last of them were made, the first ones first.
    made_at: VecDeque<Instant>,
    /// Connections that were made before the one of this number pass nothing on for as long as they live.
    speaks_from: u64,
    connections: Vec<(u64, TcpStream, TcpStream)>,
}

impl Proxy {
    /// Passes on what is said at one address to another.
    ///
    /// # Errors
    /// The address is in use.
    pub fn start(at: SocketAddr, to: SocketAddr) -> Result<Self> {
        let listener = listen(at)?;
        // With port 0 it is the kernel that chooses.
        let at = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        shared.lock().listens = true;
        let of_thread = Arc::clone(&shared);
        let listener = thread::Builder::new()
            .name("proxy".to_owned())
            .spawn(move || of_thread.run(listener, at, to))
            .context("start the proxy")?;
        Ok(Self { at, shared, listener: Some(listener) })
    }

    /// Where it listens.
    #[must_use]
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// Changes what the network does; it does so when this returns.
    pub fn set(&self, network: Network) {
        let mut state = self.shared.lock();
        state.network = network;
        if network.door == Door::Cut {
            state.cut();
        }
        self.shared.changed.notify_all();
        let wanted = network.door == Door::Open;
        let waits = |state: &mut State| state.listens != wanted && !state.ended;
        drop(self.shared.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner));
    }

    /// Has the connections that there are pass nothing on any more, ever, though nobody closes them: as when somebody between forgets them.
    /// New ones are as the network is.
    pub fn silence(&self) {
        let mut state = self.shared.lock();
        state.speaks_from = state.made + 1;
    }

    /// How many connections were made through it so far.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.shared.lock().made
    }

    /// When these were made, as far as they are remembered.
    #[must_use]
    pub fn made_at(&self) -> Vec<Instant> {
        self.shared.lock().made_at.iter().copied().collect()
    }

    /// How many connections there are.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.lock().connections.len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ended = true;
        state.cut();
        drop(state);
        self.shared.changed.notify_all();
        if let Some(listener) = self.listener.take() {
            // It has panicked, which it has said.
            drop(listener.join());
        }
    }
}

impl State {
    fn cut(&mut self) {
        for (_, node, server) in self.connections.drain(..) {
            for stream in [node, server] {
                // It may have ended by itself.
                drop(stream.shutdown(Shutdown::Both));
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens as long as the door is open, until the end.
    fn run(self: &Arc<Self>, first: TcpListener, at: SocketAddr, to: SocketAddr) {
        let mut listener = Some(first);
        loop {
            let (door, ended) = {
                let state = self.lock();
                (state.network.door, state.ended)
            };
            if ended {
                return;
            }
            listener = match (door, listener) {
                (Door::Open, None) => listen(at).ok(),
                (Door::Open, listener) => listener,
                (Door::Shut | Door::Cut, _) => None,
            };
            self.listens(listener.is_some());
            if let Some(listener) = &listener
                && let Ok((node, _)) = listener.accept()
            {
                // The server does not answer: nor does this.
                drop(self.connect(node, to));
                continue;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn listens(&self, listens: bool) {
        let mut state = self.lock();
        if state.listens != listens {
            state.listens = listens;
            self.changed.notify_all();
        }
    }

    fn connect(self: &Arc<Self>, node: TcpStream, to: SocketAddr) -> Result<()> {
        node.set_nonblocking(false)?;
        let server = TcpStream::connect(to)?;
        for stream in [&node, &server] {
            stream.set_nodelay(true)?;
        }
        let id = {
            let mut state = self.lock();
            if state.connections.len() >= CONNECTIONS_MAX || state.network.door != Door::Open {
                return Ok(());
            }
            state.made += 1;
            let id = state.made;
            if state.made_at.len() == CONNECTIONS_MAX {
                state.made_at.pop_front();
            }
            state.made_at.push_back(Instant::now());
            state.connections.push((id, node.try_clone()?, server.try_clone()?));
            id
        };
        let ways: [(Direction, _, _); 2] = [
            (|network| network.requests, node.try_clone()?, server.try_clone()?),
            (|network| network.answers, server, node),
        ];
        for (way, from, to) in ways {
            let shared = Arc::clone(self);
            thread::Builder::new()
                .name("proxy".to_owned())
                .spawn(move || shared.pass_on(id, way, from, to))?;
        }
        Ok(())
    }

    /// Passes on one direction of a connection until it ends, which ends the other.
    fn pass_on(&self, id: u64, way: Direction, mut from: TcpStream, mut to: TcpStream) {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let read = match from.read(&mut piece) {
                Err(failure) if failure.kind() == ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => break,
                Ok(read) => read,
            };
            if !self.wait_for(id, way) || to.write_all(&piece[..read]).is_err() {
                break;
            }
        }
        let mut state = self.lock();
        state.connections.retain(|(one, ..)| *one != id);
        for stream in [from, to] {
            // The other direction has done it.
            drop(stream.shutdown(Shutdown::Both));
        }
    }

    /// Waits as long as a direction is silent or slow; false when everything has ended.
    fn wait_for(&self, id: u64, way: Direction) -> bool {
        let silent = |state: &mut State| {
            (way(&state.network) == Way::Silent || id < state.speaks_from) && !state.ended
        };
        let state = self.changed.wait_while(self.lock(), silent).unwrap_or_else(PoisonError::into_inner);
        let (way, ended) = (way(&state.network), state.ended);
        drop(state);
        if let Way::Slow(delay) = way {
            thread::sleep(delay);
        }
        !ended
    }
}

fn listen(at: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(at).with_context(|| format!("listen at {at}"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);
    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    /// A server that says back what it hears, for ever.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind(ANY).unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
                });
            }
        });
        at
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect(proxy.at()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    fn ask(stream: &mut TcpStream, byte: u8) -> std::io::Result<u8> {
        let mut answer = [0];
        stream.write_all(&[byte])?;
        stream.read_exact(&mut answer)?;
        Ok(answer[0])
    }

    #[test]
    fn what_is_kept_arrives_when_the_network_speaks_again() {
        let proxy = Proxy::start(ANY, echo()).unwrap();
        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream, 1).unwrap(), 1);
        proxy.set(Network::SILENT);
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        ask(&mut stream, 2).unwrap_err();
        proxy.set(Network::default());
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut answer = [0];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!((answer, proxy.made(), proxy.connections()), ([2], 1, 1));
    }

    #[test]
    fn a_connection_that_was_silenced_stays_so_and_others_speak() {
        let proxy = Proxy::start(ANY, echo()).unwrap();
        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream, 1).unwrap(), 1);
        proxy.silence();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        ask(&mut stream, 2).unwrap_err();
        assert_eq!(ask(&mut connect(&proxy), 3).unwrap(), 3);
        proxy.set(Network::default());
        ask(&mut stream, 4).unwrap_err();
    }

    #[test]
    fn a_network_that_is_gone_cuts_and_refuses() {
        let proxy = Proxy::start(ANY, echo()).unwrap();
        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream, 1).unwrap(), 1);
        proxy.set(Network::GONE);
        ask(&mut stream, 2).unwrap_err();
        TcpStream::connect(proxy.at()).unwrap_err();
        proxy.set(Network::default());
        assert_eq!(ask(&mut connect(&proxy), 3).unwrap(), 3);
    }

    #[test]
    fn a_door_that_is_shut_leaves_who_is_in() {
        let proxy = Proxy::start(ANY, echo()).unwrap();
        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream, 1).unwrap(), 1);
        proxy.set(Network { door: Door::Shut, ..Network::default() });
        TcpStream::connect(proxy.at()).unwrap_err();
        assert_eq!(ask(&mut stream, 2).unwrap(), 2);
    }

    #[test]
    fn a_slow_way_is_slow() {
        let proxy = Proxy::start(ANY, echo()).unwrap();
        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream, 1).unwrap(), 1);
        let delay = Duration::from_millis(80);
        proxy.set(Network { answers: Way::Slow(delay), ..Network::default() });
        let began = Instant::now();
        assert_eq!(ask(&mut stream, 2).unwrap(), 2);
        assert!(began.elapsed() >= delay);
    }
}
