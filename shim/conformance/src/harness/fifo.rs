//! FIFOs, as clients of containerd hold them.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::O_NONBLOCK;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::streams::Streams;
use super::wait::{WITHIN, until};

/// How often the reader looks whether it is still wanted, in milliseconds.
const LOOK_EVERY_MS: u16 = 10;

/// The FIFOs of one process.
#[derive(Debug)]
pub struct Pipes {
    stdin: String,
    /// Standard output.
    pub out: Output,
    /// Standard error; nothing comes of it with a terminal.
    pub err: Output,
}

impl Pipes {
    /// Makes them in a directory, named after the process.
    pub fn new(dir: &Path, name: &str) -> Pipes {
        let path = |stream: &str| dir.join(format!("{name}-{stream}"));
        let stdin = Input::make(&path("in"));
        Pipes { stdin, out: Output::new(&path("out")), err: Output::new(&path("err")) }
    }

    /// All three.
    pub fn streams(&self) -> Streams {
        Streams { stdin: self.stdin.clone(), stdout: self.out.uri(), stderr: self.err.uri() }
    }

    /// Without standard input.
    pub fn outputs(&self) -> Streams {
        Streams { stdin: String::new(), ..self.streams() }
    }

    /// A client of standard input.
    pub fn input(&self) -> Input {
        Input::open(&self.stdin)
    }
}

/// A FIFO for output and its reader, which is there before any writer.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    /// Every writer has gone.
    ended: bool,
    /// Nobody reads on.
    left: bool,
}

impl Output {
    /// Makes a FIFO and reads it.
    pub fn new(path: &Path) -> Output {
        mkfifo(path, Mode::S_IRWXU).unwrap();
        Output::open(path)
    }

    /// Reads a FIFO that is there.
    pub fn open(path: &Path) -> Output {
        let fifo = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path).unwrap();
        let shared = Arc::<Shared>::default();
        let of_reader = Arc::clone(&shared);
        std::thread::spawn(move || follow(fifo, &of_reader));
        Output { path: path.to_owned(), shared }
    }

    /// The FIFO's path, as requests name it.
    pub fn uri(&self) -> String {
        self.path.display().to_string()
    }

    /// Reads no more. Returns where the FIFO is.
    pub fn leave(&self) -> PathBuf {
        let mut state = self.shared.state.lock().unwrap();
        state.left = true;
        while !state.ended {
            state = self.shared.changed.wait(state).unwrap();
        }
        self.path.clone()
    }

    /// Waits until `text` was read.
    pub fn says(&self, text: &str) {
        drop(self.wait(text, |state| contains(&state.bytes, text.as_bytes())));
    }

    /// What was read so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.shared.state.lock().unwrap().bytes).into_owned()
    }

    /// Waits until every writer has gone and returns all that was read.
    pub fn finish(&self) -> Vec<u8> {
        std::mem::take(&mut self.wait("the end of the output", |state| state.ended).bytes)
    }

    fn wait(&self, what: &str, enough: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let give_up = Instant::now() + WITHIN;
        let mut state = self.shared.state.lock().unwrap();
        while !enough(&state) {
            let left = give_up.saturating_duration_since(Instant::now());
            let shown = String::from_utf8_lossy(&state.bytes[state.bytes.len().saturating_sub(200)..]);
            assert!(!left.is_zero(), "no sign of {what:?} within {WITHIN:?}, after {shown:?}");
            state = self.shared.changed.wait_timeout(state, left.min(Duration::from_secs(1))).unwrap().0;
        }
        state
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.leave();
        }
    }
}

/// Reads until all writers have gone, of which there may be none at first.
fn follow(mut fifo: File, shared: &Shared) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mut polled = [PollFd::new(fifo.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut polled, PollTimeout::from(LOOK_EVERY_MS)).unwrap_or_default() > 0;
        // Nothing to read is no end: a writer may have come since all had gone.
        let count = if ready { fifo.read(&mut buffer).ok() } else { None };
        let mut state = shared.state.lock().unwrap();
        state.bytes.extend(&buffer[..count.unwrap_or(0)]);
        if state.left || count == Some(0) {
            drop(fifo);
            state.ended = true;
            return shared.changed.notify_all();
        }
        shared.changed.notify_all();
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// The writing end of a FIFO for input.
#[derive(Debug)]
pub struct Input(File);

impl Input {
    /// Makes a FIFO for input.
    fn make(path: &Path) -> String {
        mkfifo(path, Mode::S_IRWXU).unwrap();
        path.display().to_string()
    }

    /// Opens the FIFO once the shim has.
    fn open(path: &str) -> Input {
        let fifo = until("the shim at the other end of standard input", || {
            OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(path).ok()
        });
        fcntl(&fifo, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        Input(fifo)
    }

    /// Writes all of it, as fast as the other end reads.
    pub fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }
}
