//! The shim: one machine, one poll loop, and what the effects are performed on.

mod actions;
mod calls;
mod checkpoints;
mod children;
mod clients;
mod effects;
mod flow;
mod jobs;
mod loggers;
mod memory;
mod ownservice;
mod processes;
mod requests;
mod streams;
mod watches;

use std::collections::VecDeque;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use berth_shim_core::{Event, Machine, Now};
use nix::sys::eventfd::EventFd;

use crate::io::{CHUNK, Clock};
use crate::pod::Pod;
use crate::poll::{Interest, Ready};
use crate::publish::Publisher;
use calls::Calls;
use clients::Clients;
use processes::Processes;
use streams::Streams;
use watches::{Source, Watches};

/// Time that a shim which is done may still spend on sending what it said, milliseconds.
const LINGER_MS: u64 = 3_000;

/// Where the shim was started, and for whom.
#[derive(Debug)]
pub(crate) struct Home {
    /// containerd's socket.
    pub(crate) address: String,
    pub(crate) namespace: String,
    pub(crate) bundle: PathBuf,
    /// containerd's ttrpc socket.
    pub(crate) events_address: String,
    /// Our own, to be unlinked.
    pub(crate) socket_path: Option<PathBuf>,
}

/// Whether the loop goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// `reader` was told so, and hangs up when it has read that: containerd's client takes an answer for lost whose
    /// connection is closed before it has come to it.
    Ending {
        until_ms: u64,
        reader: Option<u64>,
    },
}

pub(crate) struct Shim {
    home: Home,
    watches: Watches,
    signals: EventFd,
    machine: Machine,
    /// Outcomes that are known at once, handled after the effects before them.
    events: VecDeque<Event>,
    performing: bool,
    clients: Clients,
    /// What the machine was told of them.
    has_clients: bool,
    processes: Processes,
    streams: Streams,
    calls: Calls,
    publisher: Publisher,
    pod: Option<Pod>,
    phase: Phase,
    clock: Clock,
    /// Read buffer, shared by everything that reads.
    chunk: Vec<u8>,
}

impl Shim {
    pub(crate) fn new(home: Home, listener: UnixListener, signals: EventFd) -> nix::Result<Self> {
        let mut watches = Watches::new()?;
        watches.add(&signals, Interest::Read, Source::Signals)?;
        let clients = Clients::new(listener, &mut watches)?;
        let clock = Clock::start();
        let streams = Streams::new(clock, &mut watches)?;
        let publisher = Publisher::new(home.events_address.clone());
        Ok(Self {
            home,
            watches,
            signals,
            machine: Machine::new(),
            events: VecDeque::new(),
            performing: false,
            clients,
            has_clients: false,
            processes: Processes::default(),
            streams,
            calls: Calls::default(),
            publisher,
            pod: None,
            phase: Phase::Serving,
            clock,
            chunk: vec![0; CHUNK],
        })
    }

    /// Runs until the machine ends the shim and what it said is sent.
    pub(crate) fn run(&mut self) -> nix::Result<()> {
        self.happen(Event::Clients { any: self.has_clients });
        while !self.is_over() {
            let timeout = self.deadline_ms().map(|at| at.saturating_sub(self.now().mono_ms));
            for ready in self.watches.wait(timeout)? {
                self.ready(ready);
            }
            self.tick();
        }
        Ok(())
    }

    /// Takes in one event and performs what follows from it, to the end.
    fn happen(&mut self, event: Event) {
        self.events.push_back(event);
        // An event that an effect causes waits for the effects before it.
        if std::mem::replace(&mut self.performing, true) {
            return;
        }
        while let Some(event) = self.events.pop_front() {
            self.clients.forget_answered();
            let now = self.now();
            self.machine.handle(now, event);
            while let Some(effect) = self.machine.poll_effect() {
                self.perform(effect);
            }
        }
        self.performing = false;
    }

    fn ready(&mut self, ready: Ready) {
        let Some(source) = self.watches.source(ready.token) else {
            // The publisher's, which comes and goes with containerd, or one that an earlier event of this round closed.
            if self.publisher.token() == Some(ready.token) {
                self.publisher.drive(self.now().mono_ms, self.watches.poll());
            }
            return;
        };
        match source {
            Source::Signals => self.reap(),
            Source::Listener => self.clients.accept_all(&mut self.watches),
            Source::AgentListener => self.clients.accept_agents(&mut self.watches),
            Source::Conn(conn) => self.conn_ready(conn, ready),
            Source::Output(process) => self.output_ready(&process, ready.token),
            Source::Input(process) => {
                self.streams.flush_input(&process, &mut self.watches, &mut self.clients);
            }
            Source::Relay(process) => self.streams.flush_relay(&process, &mut self.watches),
            Source::StdinFifo(process) => {
                let Self { streams, chunk, watches, clients, .. } = self;
                streams.stdin_fifo_ready(&process, chunk, watches, clients);
            }
            Source::Oom(task) => self.oom_ready(&task),
            Source::Logger => self.logger_ready(ready.token),
            Source::Writers => self.writers_ready(),
        }
    }

    /// Everything that happens because time passes.
    fn tick(&mut self) {
        let now = self.now();
        if self.machine.poll_timeout().is_some_and(|at| at <= now.mono_ms) {
            self.happen(Event::Tick);
        }
        self.streams.flush_logs(now);
        self.calls.kill_late(now.mono_ms);
        self.tend_loggers(now.mono_ms);
        self.look_again(now.mono_ms);
        self.processes.sweep_again(now.mono_ms);
        self.publisher.drive(now.mono_ms, self.watches.poll());
        self.flush_conns();
        self.count_clients();
    }

    fn count_clients(&mut self) {
        let any = self.clients.are_there();
        if self.phase == Phase::Serving && any != self.has_clients {
            self.has_clients = any;
            self.happen(Event::Clients { any });
        }
    }

    fn deadline_ms(&self) -> Option<u64> {
        let linger = match self.phase {
            Phase::Serving => None,
            Phase::Ending { until_ms, .. } => Some(until_ms).filter(|at| *at > self.now().mono_ms),
        };
        let single = [
            self.machine.poll_timeout(),
            self.streams.flush_at_ms(),
            self.publisher.deadline_ms(),
            linger,
            self.calls.deadline_ms(),
            self.processes.sweep_at_ms(),
            self.processes.look_at_ms(),
            self.give_up_logs_at_ms(),
        ];
        single.into_iter().flatten().min()
    }

    /// Done, and everything said is sent, or nobody takes it, and no logging program or control group is left behind.
    fn is_over(&mut self) -> bool {
        match self.phase {
            Phase::Serving => false,
            Phase::Ending { until_ms, reader } => {
                let unread = reader.is_some_and(|conn| self.clients.is_connected(conn));
                let unsent = self.clients.has_unsent() || !self.publisher.is_idle();
                let is_said = !(unread || unsent) || self.now().mono_ms >= until_ms;
                let is_clean = !self.calls.has_loggers() && !self.processes.has_leftovers();
                // Nobody is to wait for this process while a disk has it wait.
                if is_said && !self.streams.is_written() {
                    self.drop_conns();
                }
                is_clean && is_said && (self.streams.is_written() || self.gives_logs_up())
            }
        }
    }

    /// Every socket that the shim listens on.
    fn sockets(&self) -> impl Iterator<Item = &Path> {
        self.home.socket_path.as_deref().into_iter().chain(self.clients.agent_socket())
    }

    pub(crate) fn unlink_sockets(&self) {
        for path in self.sockets() {
            let _gone = std::fs::remove_file(path).is_err();
        }
    }

    fn now(&self) -> Now {
        self.clock.now()
    }
}
