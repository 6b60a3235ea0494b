//! The termination message of a container, cut to what a status may carry.
//!
//! Source: `pkg/kubelet/kuberuntime/kuberuntime_container.go` `getTerminationMessage`,
//! `pkg/kubelet/status/status_manager.go` `normalizeStatus`.

/// Most bytes that are read from the end of the file.
pub const FILE_BYTES_MAX: usize = 4096;
/// Most bytes that are taken from the end of the log.
pub const LOG_BYTES_MAX: usize = 2048;
/// Most lines that are taken from the end of the log.
pub const LOG_LINES_MAX: usize = 80;
/// Most bytes in the status of a pod, shared evenly by its containers.
pub const POD_BYTES_MAX: usize = 12 * 1024;

/// The message of a termination message file: its end, as text.
#[must_use]
pub fn from_file(content: &[u8]) -> String {
    tail(content, FILE_BYTES_MAX)
}

/// The message of a log's content, its framing removed: the last lines.
#[must_use]
pub fn from_log(content: &[u8]) -> String {
    let body = content.strip_suffix(b"\n").unwrap_or(content);
    let begin = body.iter().rposition({
        let mut breaks = 0;
        move |byte| {
            breaks += usize::from(*byte == b'\n');
            breaks == LOG_LINES_MAX
        }
    });
    tail(begin.map_or(content, |at| &content[at + 1..]), LOG_BYTES_MAX)
}

/// A container's share of what the pod's status may carry, from the beginning of the message.
#[must_use]
pub fn share(message: &str, containers: usize) -> &str {
    &message[..message.floor_char_boundary(POD_BYTES_MAX / containers.max(1))]
}

/// The last bytes as text; what is no UTF-8 is replaced, which may lengthen it, so it is cut again.
fn tail(content: &[u8], bytes_max: usize) -> String {
    let raw = &content[content.len().saturating_sub(bytes_max)..];
    let text = String::from_utf8_lossy(raw);
    let begin = text.ceil_char_boundary(text.len().saturating_sub(bytes_max));
    text[begin..].to_owned()
}

#[cfg(test)]
mod tests;
