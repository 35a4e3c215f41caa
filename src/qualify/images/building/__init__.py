"""Scripts that run inside the Nix sandbox and write the layers and layouts of images.

They promise the same bytes from the same pinned files, whatever the user, time, locale, umask,
number of processors or temporary folder. They need a plain Python 3.13 and import nothing of
`qualify` outside this package: Nix hands each step only the files it runs.
"""
