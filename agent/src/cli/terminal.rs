//! The user's terminal: its size, and raw mode that is always undone.

use std::{
    io::{self, IsTerminal},
    os::fd::AsFd,
    sync::{Mutex, Once, PoisonError},
};

use nix::sys::termios::{self, SetArg, Termios};

use crate::control::protocol::Size;

/// The settings to go back to, while the terminal is raw.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// The hook that undoes raw mode before a panic ends the process, which unwinding never does here.
static HOOK: Once = Once::new();

/// Raw mode of standard input; dropping it goes back.
#[derive(Debug)]
pub(super) struct Raw;

impl Raw {
    /// Goes to raw mode: every key, also Ctrl-C, goes to the process in the container.
    ///
    /// # Errors
    /// When standard input is no terminal.
    pub(super) fn enter() -> io::Result<Self> {
        let saved = termios::tcgetattr(io::stdin().as_fd())?;
        let mut raw = saved.clone();
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved);
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                before(info);
            }));
        });
        termios::cfmakeraw(&mut raw);
        termios::tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &raw)?;
        Ok(Self)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    let saved = SAVED.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(Err(error)) =
        saved.map(|saved| termios::tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &saved))
    {
        tracing::debug!(%error, "the terminal has gone and stays as it is");
    }
}

/// Size of the terminal on standard output, when it is one.
pub(super) fn size() -> Option<Size> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(stdout.as_fd()).ok()?;
    Some(Size { width: size.ws_col, height: size.ws_row }).filter(|size| size.width > 0)
}
