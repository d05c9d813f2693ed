"""Records as columns of Arrow, both ways. Decides how columns are cut out of records
(``arrow_reader``), which rows and columns a bulk read hands out (``arrow_rows``), and how a table
becomes frames (``arrow_encoder``). Open ``arrow_reader`` first.
"""
