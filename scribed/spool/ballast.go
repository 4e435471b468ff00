package spool

import (
	"errors"
	"io/fs"
)

// The ballast is a file that only reserves disk space. When the disk is full it is removed, so that sealing, saving the state and
// rewriting have space while appends are refused. Appends resume once it could be created again.

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// outOfSpace is the event that the disk is full: the ballast is removed, and no segment is created until there is space again.
func (s *Spool) outOfSpace(cause error) {
	s.ballasting.Lock()
	defer s.ballasting.Unlock()
	s.mu.Lock()
	had, before := s.mu.ballast, s.mu.diskFull
	s.mu.ballast, s.mu.diskFull = false, true
	s.mu.Unlock()
	if !before {
		s.metrics.diskFull.Inc()
		s.logger.Warn("disk full: refusing appends", "ballast_given_up", had, "error", cause)
	}
	if had {
		if err := s.fs.Remove(s.fs.PathJoin(s.cfg.Dir, ballastName)); err != nil && !isNotExist(err) {
			s.logger.Error("removing the ballast failed", "error", err)
		}
	}
	s.kickKeeper.WakeUp()
}

// restoreBallast creates the ballast again. It is not an error if there is no space for it yet.
func (s *Spool) restoreBallast() error {
	s.ballasting.Lock()
	defer s.ballasting.Unlock()
	if err := s.makeBallast(); err != nil {
		if noSpace(err) {
			return nil
		}
		return err
	}
	s.mu.Lock()
	s.mu.diskFull = false
	s.mu.Unlock()
	s.logger.Info("disk no longer full: appends resume")
	return nil
}

// makeBallast creates the ballast, or removes one that the configuration no longer wants.
func (s *Spool) makeBallast() error {
	path := s.fs.PathJoin(s.cfg.Dir, ballastName)
	if s.cfg.BallastBytes == 0 {
		if err := s.fs.Remove(path); err != nil && !isNotExist(err) { // left from another configuration
			return err
		}
		return nil
	}
	f, err := s.fs.Create(path, diskCategory)
	if err != nil {
		return err
	}
	err = f.Preallocate(0, s.cfg.BallastBytes)
	if err != nil && cannotPreallocate(err) {
		err = nil
		for zeros, at := make([]byte, 1<<20), int64(0); err == nil && at < s.cfg.BallastBytes; at += int64(len(zeros)) {
			_, err = f.WriteAt(zeros[:min(int64(len(zeros)), s.cfg.BallastBytes-at)], at)
		}
		if err == nil {
			err = f.Sync()
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, s.fs.Remove(path))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.ballast = true
	return nil
}
