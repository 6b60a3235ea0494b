//! Messages between the agent and a worker: a length (u32, big-endian) and as many bytes of JSON.

use std::io::{self, Read, Write};

use tokio::io::{AsyncRead, AsyncReadExt};

/// Largest message: the files of the largest volume of objects, as base64.
pub(super) const MESSAGE_MAX: usize = 96 << 20;

/// The length to send before a message.
pub(super) fn head(message: &[u8]) -> io::Result<[u8; 4]> {
    let length = u32::try_from(message.len()).ok().filter(|_| message.len() <= MESSAGE_MAX);
    length.map(u32::to_be_bytes).ok_or_else(too_large)
}

/// The bytes to send.
pub(super) fn encode(message: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(4 + message.len());
    bytes.extend_from_slice(&head(message)?);
    bytes.extend_from_slice(message);
    Ok(bytes)
}

/// Writes one message.
pub(super) fn write(out: &mut impl Write, message: &[u8]) -> io::Result<()> {
    out.write_all(&encode(message)?)
}

/// Reads one message; `None` at the end.
pub(super) fn read(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    if from.read(&mut length[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut length[1..])?;
    let length = bounded(length)?;
    let mut message = Vec::new();
    if from.take(length as u64).read_to_end(&mut message)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(message))
}

/// Reads one message in the agent.
pub(super) async fn receive(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).await?;
    let length = bounded(length)?;
    let mut message = Vec::new();
    if from.take(length as u64).read_to_end(&mut message).await? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(message)
}

fn bounded(length: [u8; 4]) -> io::Result<usize> {
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > MESSAGE_MAX { Err(too_large()) } else { Ok(length) }
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message of more than 96 MiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_cut_or_too_large_is_refused() {
        let mut bytes = Vec::new();
        write(&mut bytes, b"{}").unwrap();
        assert_eq!(read(&mut bytes.as_slice()).unwrap().as_deref(), Some(&b"{}"[..]));
        assert_eq!(read(&mut &b""[..]).unwrap(), None);
        read(&mut &bytes[..3]).unwrap_err();
        read(&mut &bytes[..5]).unwrap_err();
        read(&mut &[0xff; 8][..]).unwrap_err();
        encode(&vec![0; MESSAGE_MAX + 1]).unwrap_err();
    }
}
