package github

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// HandBack gives what this process made below dirs to the owner of the
// workspace. A container action runs as root, and what it leaves behind would
// break the next checkout on a self-hosted runner. Links are not followed, and
// files of others are left alone.
func HandBack(workspace string, dirs ...string) error {
	return handBack(workspace, os.Geteuid(), os.Lchown, dirs)
}

func handBack(workspace string, uid int, chown func(string, int, int) error, dirs []string) error {
	if uid != 0 {
		return nil // files have the right owner already
	}
	info, err := os.Stat(workspace)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) == uid {
		return nil
	}
	var problems []error
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				problems = append(problems, err)
				return nil
			}
			mine, err := os.Lstat(path)
			if err != nil {
				return nil //nolint:nilerr // it is gone
			}
			if st, ok := mine.Sys().(*syscall.Stat_t); ok && int(st.Uid) == uid {
				if err := chown(path, int(owner.Uid), int(owner.Gid)); err != nil {
					problems = append(problems, err)
				}
			}
			return nil
		})
		if err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}
