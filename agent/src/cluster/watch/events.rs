//! The events of a watch, in the order in which they come.
//!
//! A large one is read on a thread of its own, so that everything else goes on meanwhile; the next one waits for it.

use serde::de::DeserializeOwned;
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use crate::{
    cluster::{
        ApiError, Clients,
        head::Head,
        lenient::{self, Read},
        lines::{Line, Lines},
    },
    large::{AT_ONCE_BYTES, Stopping},
};

/// What a stream brings.
#[derive(Debug)]
pub(super) enum Next<K> {
    /// A line of so many bytes.
    Line(Read<K>, usize),
    /// It has ended.
    End,
    /// Nothing more came in time.
    Silence,
    /// There is another client.
    Replaced,
}

/// Events as they come.
#[derive(Debug)]
pub(super) struct Events<K> {
    lines: Lines,
    reading: Option<JoinHandle<Next<K>>>,
    /// When the stream was begun.
    pub(super) began: Instant,
    /// Whether it has brought anything.
    pub(super) has_told: bool,
}

impl<K: DeserializeOwned + Send + 'static> Events<K> {
    pub(super) fn of(lines: Lines) -> Self {
        Self { lines, reading: None, began: Instant::now(), has_told: false }
    }

    /// What comes next until then. Nothing is lost when it is given up.
    pub(super) async fn next(&mut self, until: Instant, clients: &mut Clients) -> Result<Next<K>, ApiError> {
        // Both are cancel safe.
        let next = tokio::select! {
            next = timeout_at(until, self.event()) => next.unwrap_or(Ok(Next::Silence)),
            () = clients.replaced() => Ok(Next::Replaced),
        };
        self.has_told |= matches!(next, Ok(Next::Line(..)));
        next
    }

    async fn event(&mut self) -> Result<Next<K>, ApiError> {
        loop {
            if let Some(reading) = &mut self.reading {
                let read = reading.await;
                self.reading = None;
                return read.map_err(|_cancelled| stopping(Stopping));
            }
            match self.lines.next().await.transpose()? {
                None => return Ok(Next::End),
                Some(Line::Head { bytes, length }) => {
                    return Ok(Next::Line(Read::Head(Head::of(&bytes)), length));
                }
                Some(Line::Whole(line)) if line.len() <= AT_ONCE_BYTES => return Ok(read(&line)),
                Some(Line::Whole(line)) => {
                    self.reading = Some(tokio::task::spawn_blocking(move || read(&line)));
                }
            }
        }
    }
}

fn read<K: DeserializeOwned>(line: &[u8]) -> Next<K> {
    let read = match serde_json::from_slice(line) {
        Ok(event) => Read::Event(event),
        Err(why) => lenient::event(line, &why).unwrap_or_else(|| Read::Broken(ApiError::of_json(&why))),
    };
    Next::Line(read, line.len())
}

pub(in crate::cluster) fn stopping(why: Stopping) -> ApiError {
    ApiError::Unanswered(why.to_string())
}

#[cfg(test)]
mod tests;
