//! Takes over the terminal, draws on it, and restores it in any case, also after a panic.

use std::io::{self, Write, stdout};
use std::sync::Once;
use std::time::Duration;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};
use tokio::sync::mpsc;

use super::show::{Line, Tone};

/// How often the thread that reads keys checks whether they are still needed.
const LOOK_AROUND: Duration = Duration::from_millis(250);
/// Largest number of pending keys.
const KEYS_MAX: usize = 16;

/// A key press.
pub(super) enum Key {
    /// Quit.
    Quit,
    /// Any other key, or a change of the terminal's size.
    Other,
}

/// The terminal while it is taken over.
pub(super) struct Screen {
    /// Whether colours are permitted (`NO_COLOR`).
    coloured: bool,
}

impl Screen {
    /// Takes over the terminal; returns it with a channel of key presses.
    pub(super) fn open() -> io::Result<(Self, mpsc::Receiver<Key>)> {
        enable_raw_mode()?;
        let screen = Self { coloured: std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty()) };
        give_back_on_panic();
        execute!(stdout(), EnterAlternateScreen, Hide, Clear(ClearType::All))?;
        let (keys, pressed) = mpsc::channel(KEYS_MAX);
        std::thread::Builder::new().name("keys".to_owned()).spawn(move || read(&keys))?;
        Ok((screen, pressed))
    }

    /// Draws lines, which `lines` makes for the terminal's size.
    pub(super) fn show(&self, lines: impl FnOnce(usize, usize) -> Vec<Line>) -> io::Result<()> {
        let (width, height) = size()?;
        let mut out = stdout().lock();
        queue!(out, BeginSynchronizedUpdate)?;
        let lines = lines(width.into(), height.into());
        for (row, line) in (0..height).zip(&lines) {
            queue!(out, MoveTo(0, row))?;
            for (tone, text) in line.spans() {
                self.dress(&mut out, *tone)?;
                queue!(out, Print(text), ResetColor, SetAttribute(Attribute::Reset))?;
            }
            queue!(out, Clear(ClearType::UntilNewLine))?;
        }
        let used = u16::try_from(lines.len()).unwrap_or(height);
        if used < height {
            queue!(out, MoveTo(0, used), Clear(ClearType::FromCursorDown))?;
        }
        queue!(out, EndSynchronizedUpdate)?;
        out.flush()
    }

    fn dress(&self, out: &mut impl Write, tone: Tone) -> io::Result<()> {
        match tone {
            Tone::Plain => {}
            Tone::Strong => queue!(out, SetAttribute(Attribute::Bold))?,
            Tone::Soft => queue!(out, SetAttribute(Attribute::Dim))?,
            _ if !self.coloured => queue!(out, SetAttribute(Attribute::Bold))?,
            Tone::Good => queue!(out, SetForegroundColor(Color::Green))?,
            Tone::Warn => queue!(out, SetForegroundColor(Color::Yellow))?,
            Tone::Bad => queue!(out, SetForegroundColor(Color::Red))?,
            Tone::Accent => queue!(out, SetForegroundColor(Color::Cyan))?,
        }
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Restores the terminal.
fn give_back() {
    let _ = execute!(stdout(), ResetColor, Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

/// Restores the terminal before a panic message is printed.
fn give_back_on_panic() {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
    });
}

/// Reads keys until the receiver is closed.
fn read(keys: &mpsc::Sender<Key>) {
    while !keys.is_closed() {
        match event::poll(LOOK_AROUND) {
            Ok(false) => continue,
            Ok(true) => {}
            Err(_) => return,
        }
        let Ok(event) = event::read() else { return };
        let Some(key) = meaning(&event) else { continue };
        if keys.blocking_send(key).is_err() {
            return;
        }
    }
}

fn meaning(event: &Event) -> Option<Key> {
    match event {
        Event::Key(key) if key.kind == KeyEventKind::Press => {
            let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
            Some(match key.code {
                KeyCode::Char('c' | 'd') if with_control => Key::Quit,
                KeyCode::Char('q' | 'Q') | KeyCode::Esc => Key::Quit,
                _ => Key::Other,
            })
        }
        Event::Resize(..) => Some(Key::Other),
        _ => None,
    }
}
